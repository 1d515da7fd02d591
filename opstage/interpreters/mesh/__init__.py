"""Programs on a mesh of ranks: `Ranks` hosts them, and `Varying` knows what differs between them."""
