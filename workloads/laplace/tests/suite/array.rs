//! The solver on a distributed array computes the bits of the sequential one, however it is cut.

use samite::Mask;
use samite_laplace::job::array::{self, Args};
use samite_testkit::{Failed, check, units};

fn exact(name: &str, count: u32, mask: Mask, [rows, cols]: [usize; 2], grid: &str) {
    let steps = 30;
    units(count).mask(mask).run(name, |fabric, _| {
        let args = Args {
            rows,
            cols,
            steps,
            no_check: false,
        };
        let mut out = Vec::new();
        array::run(fabric, &args, &mut out).map_err(Failed::new)?;
        let text = String::from_utf8_lossy(&out);
        let cells = rows * cols;
        let speaks = fabric.identity().unit == 0;
        for expected in [
            format!("SUCCESSFUL: {cells} of {cells} cells"),
            grid.to_owned(),
        ] {
            check!(text.contains(&expected) == speaks, "{expected}? {text}");
        }
        Ok(())
    });
}

#[test]
fn one_unit() {
    exact("array::one_unit", 1, Mask::default(), [33, 50], "1 × 1");
}

#[test]
fn two_units() {
    exact("array::two_units", 2, Mask::default(), [64, 40], "2 × 1");
}

#[test]
fn side_by_side() {
    exact("array::side_by_side", 3, Mask::default(), [3, 50], "1 × 3");
}

#[test]
fn two_by_two() {
    exact("array::two_by_two", 4, Mask::default(), [41, 37], "2 × 2");
}

#[test]
fn two_by_two_by_messages() {
    let name = "array::two_by_two_by_messages";
    exact(name, 4, Mask::MESSAGES_ONLY, [20, 21], "2 × 2");
}

#[test]
fn more_units_than_rows() {
    exact(
        "array::more_units_than_rows",
        4,
        Mask::default(),
        [1, 2],
        " × ",
    );
}
