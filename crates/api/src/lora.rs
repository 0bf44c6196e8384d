//! Requests that load and unload LoRA adapters, judged in the engine's words.

use super::{
    body::ValidBody,
    error::ApiError,
    schema::{
        self, Field, Kind,
        Need::{Nullable, Optional, Required},
        Object, object,
    },
};

/// A request to `/v1/load_lora_adapter`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoadAdapter {
    /// The model name that requests give.
    pub lora_name: String,
    /// Where its weights are.
    pub lora_path: String,
    /// Whether it takes the place of one of the same name.
    pub load_inplace: bool,
}

const LOAD: Object = object(&[
    Field("lora_name", Kind::Text, Required),
    Field("lora_path", Kind::Text, Required),
    Field("load_inplace", Kind::Flag, Optional),
    Field("is_3d_lora_weight", Kind::Flag, Optional),
]);

const UNLOAD: Object = object(&[Field("lora_name", Kind::Text, Required), Field("lora_int_id", Kind::Int, Nullable)]);

impl LoadAdapter {
    /// Reads a body.
    ///
    /// # Errors
    /// Not JSON, not an object, or with fields of other types.
    pub fn parse(body: &[u8]) -> Result<Self, ApiError> {
        let map = schema::read(&LOAD, body)?;
        let body = ValidBody(&map);
        let text = |name: &str| body.text(name).unwrap_or_default();
        let load_inplace = body.flag("load_inplace", false);
        Ok(Self { lora_name: text("lora_name"), lora_path: text("lora_path"), load_inplace })
    }
}

/// Reads a request to `/v1/unload_lora_adapter`: the name that is forgotten.
///
/// # Errors
/// Not JSON, not an object, or with fields of other types.
pub fn unloaded(body: &[u8]) -> Result<String, ApiError> {
    let map = schema::read(&UNLOAD, body)?;
    Ok(ValidBody(&map).text("lora_name").unwrap_or_default())
}
