"""Arrays in memory that has views, and arrays of other libraries."""
