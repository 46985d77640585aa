//! How the agent handles requests, and a process answers, that no honest one would send.

mod answers;
mod requests;
