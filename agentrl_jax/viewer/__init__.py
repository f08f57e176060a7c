"""Shows what an agent did: `scenes` computes the boards of recorded episodes, `imported` reads other programs' logs."""
