/// Errors of the programs.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The stream.
    #[error(transparent)]
    Stage(Box<samite::stage::Error>),
    /// The other units of a program.
    #[error(transparent)]
    Fabric(#[from] samite::Error),
    /// The stream ended before its last step.
    #[error("the writers closed the stream before its last step")]
    Ended,
    /// A step that was not dropped is missing.
    #[error("step {0} is missing, although the policy drops no steps")]
    Missing(u64),
    /// A step without the attributes of the writers.
    #[error(
        "step {0} does not carry the number of steps: is its writer synthetic-writer, of the same build?"
    )]
    Untold(u64),
    /// A unit cannot decode a message of another one.
    #[error("a message from another unit makes no sense: do all units come from the same build?")]
    Said(#[from] postcard::Error),
    /// No memory for the writer's own array.
    #[error(
        "no memory for this writer's array of {0} bytes: use a smaller --shape, more writers, or --way alloc"
    )]
    Memory(u64),
    /// Elements that differ from what was written.
    #[error(
        "{wrong} of {elements} elements are wrong, the first one in step {step}, at place {place} of the whole array"
    )]
    Wrong {
        /// Number of wrong elements.
        wrong: u64,
        /// Elements that were read.
        elements: u64,
        /// Step of the first one.
        step: u64,
        /// Its index, counted row by row.
        place: u64,
    },
    /// No element was checked.
    #[error(
        "no element of {0} steps was checked: the policy dropped those that --check looks at; check all"
    )]
    Unchecked(u64),
    /// The output of the program cannot be written.
    #[error("the standard output could not be written")]
    Output(#[from] std::io::Error),
}

impl From<samite::stage::Error> for Error {
    fn from(error: samite::stage::Error) -> Self {
        Error::Stage(Box::new(error))
    }
}

impl From<samite::stage::SpaceError> for Error {
    fn from(error: samite::stage::SpaceError) -> Self {
        samite::stage::Error::from(error).into()
    }
}
