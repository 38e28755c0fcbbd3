NumPEs: 256
L1Size: 4096
L2Size: 262144
NoC_BW: 64
NoC_NumHops: 1
