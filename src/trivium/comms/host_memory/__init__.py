"""Messages between ranks of one host through its memory."""
