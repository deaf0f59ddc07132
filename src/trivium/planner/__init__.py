"""Search the plans worth running for a model, a batch and a machine. They are priced and explained."""
