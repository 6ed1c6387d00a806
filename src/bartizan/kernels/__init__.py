"""Kernels over p coordinates (`cpu`, `gpu`) and over M x M numbers (`weigh`), with their definitions (`reference`)."""
