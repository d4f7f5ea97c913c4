"""The file between the two sides: HDF5 that any viewer opens.

writer and reader are the two ends; sections, userblock, journal and hdf5 say what stands where (docs/dump-format.md
tells it whole); recovery closes what a killed capture left; guard says what is wrong with a file that is not, or no
longer, ours. Only this package knows HDF5, and only guard imports h5py.
"""
