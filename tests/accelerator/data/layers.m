// output channels over clusters, input channels inside them
Network small {
  Layer CONV2 {
    Type: CONV
    Stride { X: 1, Y: 1 }
    Dimensions { K: 8, C: 128, R: 3, S: 3, Y: 16, X: 16 }
    Dataflow {
      SpatialMap(1,1) K;
      TemporalMap(64,64) C;
      TemporalMap(Sz(R),Sz(R)) R;
      TemporalMap(Sz(S),Sz(S)) S;
      TemporalMap(Sz(R),1) Y;
      TemporalMap(Sz(S),1) X;
      Cluster(64, P);
      SpatialMap(1,1) C;
      TemporalMap(Sz(R),1) Y;
      TemporalMap(Sz(S),1) X;
      TemporalMap(Sz(R),Sz(R)) R;
      TemporalMap(Sz(S),Sz(S)) S;
    }
  }
  Layer GEMM1 {
    Type: GEMM
    Dimensions { M: 32, N: 20, K: 16 }
    Dataflow {
      SpatialMap(1,1) M;
      TemporalMap(4,4) N;
      TemporalMap(16,16) K;
      Cluster(16, P);
      SpatialMap(1,1) K;
    }
  }
}
