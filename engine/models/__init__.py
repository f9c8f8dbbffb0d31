"""One decoder network, its frozen config of switches, and the families that map onto it."""
