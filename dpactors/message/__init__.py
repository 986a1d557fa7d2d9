"""Floor 1: typed messages, their lasting tags and their CBOR codec. Knows nothing above."""
