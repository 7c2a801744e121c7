"""Tables: reading files, the type of every column, and the columns as a matrix of numbers."""
