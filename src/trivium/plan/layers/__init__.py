"""The parts of a layer, described without torch."""
