"""The model, its parts and its optimizers a second time, in plain torch. No code of the engine is used."""
