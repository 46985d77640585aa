//! The tests of staging, in one program. `stream` and `simulated` run the protocol alone, the
//! others run processes; `staged` has what these share. `hostile` is a program of its own: it
//! counts what it allocates.

mod alone;
mod faults;
mod files;
mod graph;
mod hosts;
mod keeping;
mod methods;
mod nodes;
mod simulated;
mod staged;
mod stream;
mod streams;
mod table_four;
mod threads;
mod watch;
mod zarr;
