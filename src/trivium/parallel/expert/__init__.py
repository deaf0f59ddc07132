"""Expert parallelism: each rank holds some of the experts of a layer."""
