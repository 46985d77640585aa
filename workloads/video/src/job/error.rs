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
    /// A worker has not begun, or not done its frame: it may have been stopped.
    #[error("worker.{rank} has not done its frame for {after:?}: it is taken for lost")]
    Late {
        /// Its rank.
        rank: usize,
        /// The deadline.
        after: std::time::Duration,
    },
    /// Workers do not wait for a sink that is stopped for seconds.
    #[error(
        "the sink was stopped, and the workers went on without it: {missed} of the frames are missing; run the job again, without stopping the sink"
    )]
    SinkStopped {
        /// The number of frames, as far as it is known.
        missed: u64,
    },
    /// Two files would be one.
    #[error(
        "{options} are the same file, {}: one would take the place of the other; choose another name",
        path.display(), options = options.join(" and ")
    )]
    SameFile {
        /// The file.
        path: std::path::PathBuf,
        /// The options that name it.
        options: [&'static str; 2],
    },
    /// The frames are not those of the sequential run.
    #[error("the output differs from that of a sequential run: {0}")]
    Different(String),
    /// A file holds no figures of a run.
    #[error("{} holds no figures of a run: {why}", path.display())]
    Figures {
        /// The file.
        path: std::path::PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The report could not be written.
    #[error(transparent)]
    Report(#[from] samite_report::Error),
    /// A worker cannot play a board.
    #[error("{0}")]
    Board(String),
    /// The processor time of a worker cannot be limited.
    #[error("the processor time of a worker cannot be limited: {why}; use `--pace sleep`")]
    Quota {
        /// What is missing.
        why: String,
    },
    /// The live page cannot be served.
    #[error("the live page cannot be served at {address}: {why}")]
    Live {
        /// Where.
        address: std::net::SocketAddr,
        /// The error of the system.
        why: String,
    },
    /// The output of the program cannot be written.
    #[error("the standard output could not be written")]
    Output(#[from] std::io::Error),
}
