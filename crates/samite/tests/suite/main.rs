//! The tests of what a program sees of Samite: its settings, its environment, strangers that
//! knock, and what the examples cost their writer.

mod decoders;
mod effort;
mod environment;
mod granted;
mod guide;
mod hostile;
mod map;
mod operator;
