//! Bad input and fault injection: what does not exist, what is too far, too large or nothing at
//! all, deaths in the middle, and beginning anew many times. (More deaths: `lock`, `collective`;
//! arguments of collectives that do not agree: `collective`.)
//!
//! # Files
//! `beyond` (places that are not there) · `nothing` (zero of everything) · `sizes` (too large, and
//! just very large) · `deaths` · `ending` · `lives` (370 of them)

mod beyond;
mod deaths;
mod ending;
mod lives;
mod nothing;
mod sizes;
