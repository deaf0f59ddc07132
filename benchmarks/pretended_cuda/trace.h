/* What a process asks of streams, events and other ranks, one line each, in the file that `trace_to` opened. */
void traced(const char *form, ...);
