"""What two or more actors must agree on. Pure."""
