/// Errors outside the arithmetic.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An operation on global memory failed.
    #[error(transparent)]
    Pgas(#[from] samite::pgas::Error),
    /// A unit received more keys than the sample had predicted.
    #[error(
        "rank {rank} has room for {chunks} chunks of keys, but more were sent: the sample does not represent the keys"
    )]
    Capacity {
        /// The rank whose memory is full.
        rank: u32,
        /// Chunks that fit into it.
        chunks: u64,
    },
    /// The memory for keys contains data that no unit writes there.
    #[error("a chunk of keys is malformed: are all units of one build?")]
    Malformed,
    /// The result is not the published one.
    #[error("the verification failed: {0}")]
    Wrong(String),
    /// The output of the program cannot be written.
    #[error("the standard output could not be written")]
    Output(#[from] std::io::Error),
}
