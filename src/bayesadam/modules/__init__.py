"""What the library knows about torch modules: names, wrappers, modes, buffers, padding, shards and exclusive use."""
