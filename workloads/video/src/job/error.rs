/// Why a program of the job ends without its result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The source or the sink failed.
    #[error(transparent)]
    Video(#[from] crate::Error),
    /// An operation of the fabric failed.
    #[error(transparent)]
    Fabric(#[from] samite::Error),
    /// An operation on a chunk failed.
    #[error(transparent)]
    Dsm(#[from] samite::dsm::Error),
    /// Another program of the job sent what does not belong to the video.
    #[error(
        "another program of the job sent {0}: do all of them run with the same `--via`, in one job?"
    )]
    Unexpected(String),
    /// The frames are not those of the sequential run.
    #[error("the output differs from that of a sequential run: {0}")]
    Different(String),
    /// The output of the program cannot be written.
    #[error("the standard output could not be written")]
    Output(#[from] std::io::Error),
}
