"""Small files of every format of external times, written by hand after what the tools write."""

from __future__ import annotations

ACCEL_SIM = """\
-gpgpu_clock_domains 1410.0:1410.0:1410.0:1215.0 # Clock Domain Frequencies in MhZ {Core:ICNT:L2:DRAM}
GPGPU-Sim uArch: clock freqs: 1410000000.000000:1410000000.000000:1410000000.000000:1215000000.000000
launching kernel name: _Z4gemmPf uid: 1
kernel_name = _Z4gemmPf
kernel_launch_uid = 1
gpu_sim_cycle = 14100
gpu_tot_sim_cycle = 14100
gpu_tot_ipc =     833.3370
launching kernel name: _Z4reluPf uid: 2
kernel_name = _Z4reluPf
kernel_launch_uid = 2
gpu_sim_cycle = 2820
gpu_tot_sim_cycle = 16920
launching kernel name: _Z4gemmPf uid: 3
kernel_name = _Z4gemmPf
kernel_launch_uid = 3
gpu_sim_cycle = 28200
gpu_tot_sim_cycle = 45120
GPGPU-Sim: *** exit detected ***
"""

GEM5 = """\

---------- Begin Simulation Statistics ----------
simSeconds                                   0.000004                       # Number of seconds simulated (Second)
simTicks                                      4200000                       # Number of ticks simulated (Tick)
finalTick                                    14200000                       # Number of ticks from beginning (Tick)
simFreq                                  1000000000000                       # ticks per second ((Tick/Second))
system.cpu.numCycles                            12000                       # (Cycle)

---------- End Simulation Statistics   ----------

---------- Begin Simulation Statistics ----------
simSeconds                                   0.000007                       # Number of seconds simulated (Second)
simTicks                                      7200000                       # Number of ticks simulated (Tick)
finalTick                                    17200000                       # Number of ticks from beginning (Tick)
simFreq                                  1000000000000                       # ticks per second ((Tick/Second))

---------- End Simulation Statistics   ----------
"""

MGPUSIM = """\
, where, what, value
0, Driver, kernel_time, 0.000005352000
1, Driver, total_time, 0.000105352000
2, GPU[1].CommandProcessor, kernel_time, 0.000005100000
3, GPU[1].SA[0].CU[0], cu_inst_count, 1234.000000000000
"""

NSYS_SUM = """\
Generating SQLite file report1.sqlite from report1.nsys-rep
Processing [report1.sqlite] with [cuda_gpu_kern_sum.py]...
Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name
80.0,80000,2,40000.0,40000.0,39000,41000,1000.0,"void gemm<float, 128>(float *, int)"
20.0,20001,4,5000.3,5000.0,4900,5100,80.0,relu
"""

NSYS_TRACE = """\
Start (ns),Duration (ns),CorrId,GrdX,GrdY,GrdZ,BlkX,BlkY,BlkZ,Reg/Trd,StcSMem (MB),DymSMem (MB),Bytes (MB),\
Throughput (MB/s),SrcMemKd,DstMemKd,Device,Ctx,GreenCtx,Strm,Name
900,5000,3,1,1,1,128,1,1,16,0.000,0.000,,,,,GPU (0),1,,7,relu
100,700,1,,,,,,,,,,4.194,12000.0,Pageable,Device,GPU (0),1,,7,[CUDA memcpy HtoD]
300,40000,2,32,1,1,256,1,1,128,0.000,0.032,,,,,GPU (0),1,,7,"void gemm<float, 128>(float *, int)"
"""

NCU_RAW = """\
==PROF== Connected to process 1234 (/usr/bin/python)
"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC",\
"gpu__time_duration.sum","sm__cycles_elapsed.avg"
"","","","","","","","","","","","us","cycle"
"0","1234","python","127.0.0.1","gemm","1","7","(256, 1, 1)","(32, 1, 1)","0","8.0","1,042.50","1,000"
"1","1234","python","127.0.0.1","relu","1","7","(256, 1, 1)","(32, 1, 1)","0","8.0","5.00","900"
"""

NCU_DETAILS = """\
"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC",\
"Section Name","Metric Name","Metric Unit","Metric Value","Rule Name"
"0","12","a","h","gemm","1","7","(1, 1, 1)","(1, 1, 1)","0","8.0","GPU Speed Of Light","SM Frequency","Ghz","1.08",""
"0","12","a","h","gemm","1","7","(1, 1, 1)","(1, 1, 1)","0","8.0","GPU Speed Of Light","Duration","us","42.50",""
"0","12","a","h","gemm","1","7","(1, 1, 1)","(1, 1, 1)","0","8.0","Occupancy","Duration","us","99.00",""
"1","12","a","h","relu","1","7","(1, 1, 1)","(1, 1, 1)","0","8.0","Raw","gpu__time_duration.sum","nsecond","5,000",""
"""

NEUSIGHT = """\
Name,OpName,FwOps,BwOps,AccOps,Prev,Next,InputShapes,OutputShape,fw_latency,bw_latency,acc_latency
input_ids,misc,[],[],[],[],['fc'],[],"(8, 1024)",0.0,0.0,0.0
h_0_fc,Linear,"[('Linear', (8, 1024, 4096))]",[],[],[],[],"[(8, 1024)]","(8, 4096)",0.04,0.06,0.02
"""

PLAIN = """\
operator,module,pass,count,elements,microseconds
aten::linear,h.0.fc,forward,1,,40
aten::relu,,,,32768,5.5
"""

ALL = {
    "gpgpu-sim": ACCEL_SIM, "gem5": GEM5, "mgpusim": MGPUSIM, "nsight-systems": NSYS_SUM, "nsight-compute": NCU_RAW,
    "neusight": NEUSIGHT, "plain": PLAIN,
}  # fmt: skip
"""One sample a reader."""
