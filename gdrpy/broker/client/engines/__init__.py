"""What brings regions to other machines: Ray and Dask, where the process has imported them."""
