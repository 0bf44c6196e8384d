//! LoRA adapters: further names under which requests ask for the model, as vLLM's frontend keeps them.
//!
//! An adapter changes no content. With a simulated engine it takes a place of the scheduler (`--max-loras`), is part of block
//! hashes, and is named by KV events and `vllm:lora_requests_info`. Each server of several has its own.
//!
//! Limits: a name has at most 4,096 bytes and no control characters. There are no weights, so no file has to exist at an adapter's path, and loading takes no time. What vLLM finds by
//! plugins is not found.
//!
//! See docs/decisions/0100-adapters-are-names-with-places.md.

use std::sync::Arc;

use crate::{
    PlayError,
    config::{LoraConfig, LoraModule},
    load::model::Model,
};
use ::engine::kv_cache::LoraRequest;
use api::{ApiError, lora::LoadAdapter};
use base::lock::Lock;

/// Bytes of an adapter's name and of its path: the name is in `/metrics` and KV events.
const MOST_NAME: usize = 4096;

#[derive(Debug)]
pub(crate) struct Adapters {
    is_enabled: bool,
    /// Whether clients may load and unload some.
    is_open: bool,
    state: Lock<LoadedAdapters>,
}

/// Loaded adapters, in the order of their loading, and the number of ids given out.
#[derive(Debug, Default)]
struct LoadedAdapters {
    adapters: Vec<Adapter>,
    ids: u32,
}

#[derive(Debug, Clone)]
pub(crate) struct Adapter {
    pub(crate) lora: Arc<LoraRequest>,
    /// The model's name, where one was given that is served.
    pub(crate) base_model_name: Option<String>,
}

impl LoadedAdapters {
    fn next_id(&mut self) -> u32 {
        self.ids = self.ids.saturating_add(1);
        self.ids
    }

    fn position(&self, name: &str) -> Option<usize> {
        self.adapters.iter().position(|adapter| adapter.lora.lora_name == name)
    }
}

impl Adapters {
    /// The adapters of a server before its first request; `config` is `None` where they are not enabled.
    /// Errors: an adapter that the engine would refuse.
    pub(crate) fn new(config: Option<&LoraConfig>, is_open: bool, model: &Model) -> Result<Self, PlayError> {
        let adapters = Self { is_enabled: config.is_some(), is_open, state: Lock::default() };
        for module in config.iter().flat_map(|config| &config.lora_modules) {
            let LoraModule { name, path, base_model_name } = module;
            let request = LoadAdapter { lora_name: name.clone(), lora_path: path.clone(), load_inplace: false };
            let loaded = adapters.load(request, base_model_name.as_deref(), model);
            loaded.map_err(|refused| PlayError::Adapter(refused.message))?;
        }
        Ok(adapters)
    }

    pub(crate) fn find(&self, name: &str) -> Option<Adapter> {
        let loaded = self.state.lock();
        loaded.adapters.get(loaded.position(name)?).cloned()
    }

    /// Those that are loaded, in the order of their loading.
    pub(crate) fn all(&self) -> Vec<Adapter> {
        self.state.lock().adapters.clone()
    }

    /// Checks a name that is no model's.
    /// Errors: 404 where it is no adapter's either. The engine gives out an id while it looks for one.
    pub(crate) fn check(&self, name: &str, models: &[String]) -> Result<(), ApiError> {
        let mut loaded = self.state.lock();
        if loaded.position(name).is_some() {
            return Ok(());
        }
        if self.is_open {
            loaded.next_id();
        }
        Err(ApiError::unknown_model(name, models))
    }

    /// Loads an adapter; the engine's words of success.
    /// Errors: a name that is not taken, and a server without adapters.
    pub(crate) fn load(&self, request: LoadAdapter, base: Option<&str>, model: &Model) -> Result<String, ApiError> {
        let LoadAdapter { lora_name, lora_path, load_inplace } = request;
        if lora_name.is_empty() || lora_path.is_empty() {
            return Err(ApiError::invalid_input("Both 'lora_name' and 'lora_path' must be provided."));
        }
        if lora_name.len() > MOST_NAME || lora_path.len() > MOST_NAME || lora_name.contains(char::is_control) {
            return Err(ApiError::invalid_input(format!(
                "'lora_name' and 'lora_path' may have at most {MOST_NAME} bytes, and a name no control characters."
            )));
        }
        if model.names.contains(&lora_name) {
            let message = format!("The lora adapter '{lora_name}' conflicts with a served base model.");
            return Err(ApiError::invalid_input(message));
        }
        let mut loaded = self.state.lock();
        let at = loaded.position(&lora_name);
        if at.is_some() && !load_inplace {
            return Err(ApiError::invalid_input(format!(
                "The lora adapter '{lora_name}' has already been loaded. If you want to load the adapter in place, set \
                 'load_inplace' to True."
            )));
        }
        let known = at.and_then(|at| loaded.adapters.get(at)).map(|adapter| adapter.lora.lora_int_id);
        let lora_int_id = known.unwrap_or_else(|| loaded.next_id());
        if !self.is_enabled {
            return Err(not_enabled());
        }
        let added = format!("Success: LoRA adapter '{lora_name}' added successfully.");
        let base_model_name = base.filter(|base| model.names.iter().any(|name| name == base)).map(str::to_owned);
        let lora = Arc::new(LoraRequest { lora_int_id, lora_name, lora_path });
        let adapter = Adapter { lora, base_model_name };
        match at.and_then(|at| loaded.adapters.get_mut(at)) {
            Some(known) => *known = adapter,
            None => loaded.adapters.push(adapter),
        }
        Ok(added)
    }

    /// Forgets an adapter; the engine's words of success.
    /// Errors: a name that is no adapter's.
    pub(crate) fn unload(&self, lora_name: &str) -> Result<String, ApiError> {
        if lora_name.is_empty() {
            return Err(ApiError::invalid_input("'lora_name' needs to be provided to unload a LoRA adapter."));
        }
        let mut loaded = self.state.lock();
        match loaded.position(lora_name) {
            Some(at) => {
                loaded.adapters.remove(at);
                Ok(format!("Success: LoRA adapter '{lora_name}' removed successfully."))
            }
            None => Err(ApiError::not_found(format!("The lora adapter '{lora_name}' cannot be found."))),
        }
    }
}

/// Failure of the engine's workers.
fn not_enabled() -> ApiError {
    ApiError::internal(
        "Call to add_lora method failed: Worker failed with error 'LoRA is not enabled. Use --enable-lora to enable LoRA.', \
         please check the stack trace above for the root cause",
    )
}
