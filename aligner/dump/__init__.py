"""The file between the two sides: HDF5 that any viewer opens.

schema says what stands where, writer writes it, reader reads it, guard says what is wrong with a file that
is not ours. Only this package imports h5py.
"""
