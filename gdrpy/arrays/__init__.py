"""Arrays in regions and pins, and arrays of other libraries."""
