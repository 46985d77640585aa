/// What can go wrong outside the arithmetic.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Global memory could not do what was needed of it.
    #[error(transparent)]
    Pgas(#[from] samite::pgas::Error),
    /// More keys came to a unit than the sample had announced.
    #[error(
        "rank {rank} has room for {chunks} chunks of keys, but more were sent: the sample does not represent the keys"
    )]
    Capacity {
        /// The rank whose memory is full.
        rank: u32,
        /// Chunks that it has room for.
        chunks: u64,
    },
    /// What lies in the memory for keys is not what units write there.
    #[error("a chunk of keys is malformed: are all units of one build?")]
    Malformed,
    /// The result is not the published one.
    #[error("the verification failed: {0}")]
    Wrong(String),
    /// Nobody reads what the program prints.
    #[error("the standard output could not be written")]
    Output(#[from] std::io::Error),
}
