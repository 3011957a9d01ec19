"""Offline preparation: original files become TFDS data sets, where TFDS cannot download them itself.

Each format's module finds the files of a data set and reads them row by row; `storing` writes the rows
where `seqio.TfdsDataSource` looks for them. Rows, keys and features are those of TFDS's own builders, so
that the stored records come out in the same order too.
"""
