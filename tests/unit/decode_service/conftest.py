"""Imports of the decode service pull in mlx, and the BLAS under it must be chosen before."""

from burstgate_decode.models.blas import install_blas

install_blas()
