//! The tests of global memory, in one program: a room for each part of the interface, and `litmus`
//! for the memory model.

mod array;
mod array_halo;
mod array_map;
mod array_sort;
mod check;
mod collective;
mod faults;
mod hostile;
mod leases;
mod litmus;
mod lock;
mod memory;
mod phases;
mod threads;
