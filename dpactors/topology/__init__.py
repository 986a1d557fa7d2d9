"""Floor 3: TOML -> document -> graph -> check -> plan -> drawing."""
