"""The losses that training adds to the cross-entropy, written a second time: a file for each of objectives/."""
