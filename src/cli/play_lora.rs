//! `play --enable-lora`: its adapters.

use super::{args::LoraArgs, failure::Failure, play_simulated::size};
use crate::play::{EngineConfig, LoraConfig};

/// The adapters that the flags enable, and the same engine with places for them.
///
/// # Errors
/// Flags that contradict each other.
pub(super) fn with_places(
    engine: Option<EngineConfig>,
    args: &LoraArgs,
) -> Result<(Option<EngineConfig>, Option<LoraConfig>), Failure> {
    let lora = config(args)?;
    let max_loras = lora.as_ref().map_or(0, |lora| lora.max_loras);
    let engine = engine.map(|mut engine| {
        engine.scheduler.max_loras = max_loras;
        engine
    });
    Ok((engine, lora))
}

fn config(args: &LoraArgs) -> Result<Option<LoraConfig>, Failure> {
    let LoraArgs { enable_lora, lora_modules, max_loras, max_cpu_loras } = args;
    if !enable_lora {
        return Ok(None);
    }
    if let Some(few) = max_cpu_loras.filter(|most| most < max_loras) {
        let message = format!("--max-cpu-loras ({few}) must be at least --max-loras ({max_loras})");
        return Err(Failure::usage(message).hint("raise it, or leave it out"));
    }
    Ok(Some(LoraConfig { max_loras: size(*max_loras), lora_modules: lora_modules.clone() }))
}
