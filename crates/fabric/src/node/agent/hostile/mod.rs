//! What the agent makes of requests, and a process of answers, that no honest one says.

mod answers;
mod requests;
