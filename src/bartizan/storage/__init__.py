"""Updates that do not fit into memory: how a walk over them is paced, where they and their result are kept."""
