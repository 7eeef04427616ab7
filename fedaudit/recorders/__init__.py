"""Other frameworks write our trace: one package per framework, each an extra."""
