//! Reads the steps that `heat_solver.rs` writes, prints the heat of each, and draws them side by
//! side into `heat.png`. `heat_solver.rs` says how to run both.

use samite::ndarray::{Array2, Axis, concatenate};
use samite::stage::Stage;
use std::error::Error;
use std::fs::File;

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let fabric = samite::init()?;
    let stage = Stage::join(&fabric)?;
    let mut strip = Array2::zeros((0, 0));
    for step in stage.reader("heat")? {
        let step = step?;
        let plate: Array2<f64> = step.get("temperature", ..)?; // the whole array, from all writers
        println!("step {}: total {:.3}", step.number(), plate.sum());
        strip = match strip.is_empty() {
            true => plate,
            false => concatenate(Axis(1), &[strip.view(), plate.view()])?,
        };
    }

    let (height, width) = strip.dim();
    let pixels: Vec<u8> = strip
        .iter()
        .flat_map(|degrees| colour(degrees / 100.0))
        .collect();
    let mut png = png::Encoder::new(File::create("heat.png")?, width as u32, height as u32);
    png.set_color(png::ColorType::Rgb);
    let mut png = png.write_header()?;
    png.write_image_data(&pixels)?;
    png.finish()?;
    println!("heat.png has {width} x {height} pixels");
    Ok(())
}

/// Returns a colour from black (0) over red and yellow to white (1), like hot iron.
fn colour(heat: f64) -> [u8; 3] {
    [0.0, 1.0, 2.0].map(|threshold| ((3.0 * heat - threshold) * 255.0) as u8)
}
