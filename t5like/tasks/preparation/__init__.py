"""Offline preparation: converts original files to TFDS data sets where TFDS cannot download them.

The module of each format finds the files of a data set and reads their rows; `storing` writes them where
`seqio.TfdsDataSource` looks for them. Rows, keys and features are those of TFDS's builders, and so is the
order of the stored records.
"""
