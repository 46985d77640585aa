/// What can go wrong.
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
    /// A step that was not dropped did not come.
    #[error("step {0} is missing, although the policy drops no steps")]
    Missing(u64),
    /// A step without what the writers say of it.
    #[error(
        "step {0} does not carry the number of steps: is its writer synthetic-writer, of the same build?"
    )]
    Untold(u64),
    /// A unit said something that another one does not understand.
    #[error("a message from another unit makes no sense: do all units come from the same build?")]
    Said(#[from] postcard::Error),
    /// No memory for the writer's own array.
    #[error(
        "no memory for this writer's array of {0} bytes: use a smaller --shape, more writers, or --way alloc"
    )]
    Memory(u64),
    /// Elements that are not what was written.
    #[error(
        "{wrong} of {elements} elements are wrong, the first one in step {step}, at place {place} of the whole array"
    )]
    Wrong {
        /// How many.
        wrong: u64,
        /// Elements that were read.
        elements: u64,
        /// Step of the first one.
        step: u64,
        /// Its place, counted row by row.
        place: u64,
    },
    /// No element was looked at.
    #[error(
        "no element of {0} steps was checked: the policy dropped those that --check looks at; check all"
    )]
    Unchecked(u64),
    /// Nobody reads what the program prints.
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
