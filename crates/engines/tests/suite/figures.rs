//! Figures of the engines, printed by an ignored test.
