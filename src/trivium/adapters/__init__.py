"""Parameters that are added beside frozen ones: one file for each kind of adapter."""
