"""Groups, collectives and messages between ranks, made from a layout and this process's rank."""
