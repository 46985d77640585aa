//! The engines with kernels in C, which the tests compile. They need clang 22 and lld 22; bitcode
//! needs LLVM 22, too.

mod bitcode;
mod build;
mod elf;
mod figures;
mod same;
