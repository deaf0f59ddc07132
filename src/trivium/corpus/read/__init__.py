"""Reading: files of any kind become documents, and everything unreadable is set aside with its reason."""
