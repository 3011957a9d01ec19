"""A model ready to use: generate, score, rank, embed and fill masks."""
