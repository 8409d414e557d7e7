"""Ray and Dask, which bring regions to other machines if the process has imported them."""
