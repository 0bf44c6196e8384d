//! Tools of a Responses request, the choice among them and the format of its text, as the classes that OpenAI's client has for them.
//!
//! Limits: the innermost settings of hosted tools (network policies, skills, approvals by tool) are not judged.

use crate::schema::{
    Field, Kind,
    Need::{Nullable, Required},
    Object, object,
};

const TEXTS: Kind = Kind::List(&Kind::Text);
const CALLERS: Field = Field("allowed_callers", Kind::List(&Kind::OneOf(&["direct", "programmatic"])), Nullable);
const NAME: Field = Field("name", Kind::Text, Required);
const ASYNC: Field = optional("async", Kind::Flag);
const DEFER_LOADING: Field = optional("defer_loading", Kind::Flag);
const DESCRIPTION: Field = optional("description", Kind::Text);
const OUTPUT_SCHEMA: Field = optional("output_schema", Kind::Dictionary);
const STRICT: Field = optional("strict", Kind::Flag);
const SIZES: Kind = Kind::OneOf(&["low", "medium", "high"]);

/// The field `type`, of one of these values.
const fn tag(values: &'static [&'static str]) -> Field {
    Field("type", Kind::OneOf(values), Required)
}

const fn optional(name: &'static str, kind: Kind) -> Field {
    Field(name, kind, Nullable)
}

const FUNCTION: Object = object(&[
    NAME,
    optional("parameters", Kind::Dictionary),
    STRICT,
    tag(&["function"]),
    CALLERS,
    ASYNC,
    DEFER_LOADING,
    DESCRIPTION,
    OUTPUT_SCHEMA,
]);
const FILE_SEARCH: Object = object(&[
    tag(&["file_search"]),
    Field("vector_store_ids", TEXTS, Required),
    optional("filters", FILTERS),
    optional("max_num_results", Kind::Int),
    optional("ranking_options", RANKING),
]);
const FILTERS: Kind = Kind::AnyNamed(&[
    (
        "ComparisonFilter",
        Kind::Object(&object(&[
            Field("key", Kind::Text, Required),
            tag(&["eq", "ne", "gt", "gte", "lt", "lte", "in", "nin"]),
            Field("value", Kind::Any, Required),
        ])),
    ),
    (
        "CompoundFilter",
        Kind::Object(&object(&[Field("filters", Kind::List(&Kind::Any), Required), tag(&["and", "or"])])),
    ),
]);
const RANKING: Kind = Kind::Object(&object(&[
    optional("hybrid_search", Kind::Any),
    optional("ranker", Kind::OneOf(&["auto", "default-2024-11-15"])),
    optional("score_threshold", Kind::Float),
]));
const COMPUTER_PREVIEW: Object = object(&[
    Field("display_height", Kind::Int, Required),
    Field("display_width", Kind::Int, Required),
    Field("environment", Kind::OneOf(&["windows", "mac", "linux", "ubuntu", "browser"]), Required),
    tag(&["computer_use_preview"]),
]);
const WEB_SEARCH: Object = object(&[
    tag(&["web_search", "web_search_2025_08_26"]),
    optional("external_web_access", Kind::Flag),
    optional("filters", Kind::Object(&object(&[optional("allowed_domains", TEXTS)]))),
    optional("search_context_size", SIZES),
    optional("user_location", Kind::Object(&object(&[CITY, COUNTRY, REGION, TIMEZONE, optional("type", APPROXIMATE)]))),
]);
const CITY: Field = optional("city", Kind::Text);
const COUNTRY: Field = optional("country", Kind::Text);
const REGION: Field = optional("region", Kind::Text);
const TIMEZONE: Field = optional("timezone", Kind::Text);
const APPROXIMATE: Kind = Kind::OneOf(&["approximate"]);
const MCP: Object = object(&[
    Field("server_label", Kind::Text, Required),
    tag(&["mcp"]),
    CALLERS,
    optional("allowed_tools", Kind::AnyOf(&[TEXTS, Kind::AnyNamed(&[("McpAllowedToolsMcpToolFilter", MCP_FILTER)])])),
    optional("authorization", Kind::Text),
    optional("connector_id", CONNECTORS),
    DEFER_LOADING,
    optional("headers", Kind::DictionaryOf(&Kind::Text)),
    optional("require_approval", APPROVAL),
    optional("server_description", Kind::Text),
    optional("server_url", Kind::Text),
    optional("tunnel_id", Kind::Text),
]);
const MCP_FILTER: Kind = Kind::Object(&object(&[optional("read_only", Kind::Flag), optional("tool_names", TEXTS)]));
const CONNECTORS: Kind = Kind::OneOf(&[
    "connector_dropbox",
    "connector_gmail",
    "connector_googlecalendar",
    "connector_googledrive",
    "connector_microsoftteams",
    "connector_outlookcalendar",
    "connector_outlookemail",
    "connector_sharepoint",
]);
const APPROVAL: Kind = Kind::AnyOf(&[
    Kind::AnyNamed(&[("McpRequireApprovalMcpToolApprovalFilter", Kind::Object(&object(&[])))]),
    Kind::OneOf(&["always", "never"]),
]);
const CODE_INTERPRETER: Object = object(&[
    Field(
        "container",
        Kind::AnyOf(&[Kind::Text, Kind::AnyNamed(&[("CodeInterpreterContainerCodeInterpreterToolAuto", AUTO)])]),
        Required,
    ),
    tag(&["code_interpreter"]),
    CALLERS,
]);
const AUTO: Kind = Kind::Object(&object(&[tag(&["auto"]), optional("file_ids", TEXTS), MEMORY]));
const MEMORY: Field = optional("memory_limit", Kind::OneOf(&["1g", "4g", "16g", "64g"]));
const IMAGE_GENERATION: Object = object(&[
    tag(&["image_generation"]),
    optional("action", Kind::OneOf(&["generate", "edit", "auto"])),
    optional("background", Kind::OneOf(&["transparent", "opaque", "auto"])),
    optional("complexity", SIZES),
    optional("frame_count", Kind::Int),
    optional("frame_duration_ms", Kind::Int),
    optional("input_fidelity", Kind::OneOf(&["high", "low"])),
    optional(
        "input_image_mask",
        Kind::Object(&object(&[optional("file_id", Kind::Text), optional("image_url", Kind::Text)])),
    ),
    optional("model", Kind::AnyOf(&[Kind::Text, Kind::OneOf(IMAGE_MODELS)])),
    optional("moderation", Kind::OneOf(&["auto", "low"])),
    optional("output_compression", Kind::Int),
    optional("output_format", Kind::OneOf(&["png", "webp", "jpeg", "gif", "svg"])),
    optional("partial_images", Kind::Int),
    optional("quality", Kind::OneOf(&["low", "medium", "high", "xhigh", "max", "auto"])),
    optional("size", Kind::AnyOf(&[Kind::Text, Kind::OneOf(&["1024x1024", "1024x1536", "1536x1024", "auto"])])),
    optional("svg", Kind::Object(&object(&[optional("model", Kind::Text)]))),
]);
const IMAGE_MODELS: &[&str] = &[
    "gpt-image-1",
    "gpt-image-1-mini",
    "gpt-image-2",
    "gpt-image-2-2026-04-21",
    "gpt-image-2.5-sunburst",
    "gpt-image-2.5-sunburst-2026-09-08",
    "gpt-image-2.5-flare",
    "gpt-image-2.5-flare-2026-09-08",
    "gpt-image-2.6-sunburst",
    "gpt-image-2.6-flare",
    "gpt-image-1.5",
    "chatgpt-image-latest",
];
const SHELL: Object = object(&[tag(&["shell"]), CALLERS, optional("environment", ENVIRONMENT)]);
const ENVIRONMENT: Kind = Kind::AnyNamed(&[
    ("ContainerAuto", Kind::Object(&object(&[tag(&["container_auto"]), optional("file_ids", TEXTS), MEMORY]))),
    ("LocalEnvironment", Kind::Object(&object(&[tag(&["local"])]))),
    (
        "ContainerReference",
        Kind::Object(&object(&[Field("container_id", Kind::Text, Required), tag(&["container_reference"])])),
    ),
]);
const CUSTOM: Object = object(&[
    NAME,
    tag(&["custom"]),
    CALLERS,
    ASYNC,
    DEFER_LOADING,
    DESCRIPTION,
    optional(
        "format",
        Kind::AnyNamed(&[
            ("Text", Kind::Object(&object(&[tag(&["text"])]))),
            (
                "Grammar",
                Kind::Object(&object(&[
                    Field("definition", Kind::Text, Required),
                    Field("syntax", Kind::OneOf(&["lark", "regex"]), Required),
                    tag(&["grammar"]),
                ])),
            ),
        ]),
    ),
]);
const NAMESPACE: Object = object(&[
    Field("description", Kind::Text, Required),
    NAME,
    Field(
        "tools",
        Kind::List(&Kind::AnyNamed(&[
            ("ToolFunction", Kind::Object(&NAMESPACE_FUNCTION)),
            ("CustomTool", Kind::Object(&CUSTOM)),
        ])),
        Required,
    ),
    tag(&["namespace"]),
]);
const NAMESPACE_FUNCTION: Object =
    object(&[NAME, tag(&["function"]), CALLERS, ASYNC, DEFER_LOADING, DESCRIPTION, OUTPUT_SCHEMA, STRICT]);
const TOOL_SEARCH: Object =
    object(&[tag(&["tool_search"]), DESCRIPTION, optional("execution", Kind::OneOf(&["server", "client"]))]);
const WEB_SEARCH_PREVIEW: Object = object(&[
    tag(&["web_search_preview", "web_search_preview_2025_03_11"]),
    optional("search_content_types", Kind::List(&Kind::OneOf(&["text", "image"]))),
    optional("search_context_size", SIZES),
    optional(
        "user_location",
        Kind::Object(&object(&[Field("type", APPROXIMATE, Required), CITY, COUNTRY, REGION, TIMEZONE])),
    ),
]);

/// `tools`: kinds in the order in which the engine tries them.
pub(super) const TOOLS: Kind = Kind::List(&Kind::AnyNamed(&[
    ("FunctionTool", Kind::Object(&FUNCTION)),
    ("FileSearchTool", Kind::Object(&FILE_SEARCH)),
    ("ComputerTool", Kind::Object(&object(&[tag(&["computer"])]))),
    ("ComputerUsePreviewTool", Kind::Object(&COMPUTER_PREVIEW)),
    ("WebSearchTool", Kind::Object(&WEB_SEARCH)),
    ("Mcp", Kind::Object(&MCP)),
    ("CodeInterpreter", Kind::Object(&CODE_INTERPRETER)),
    ("ProgrammaticToolCalling", Kind::Object(&object(&[tag(&["programmatic_tool_calling"])]))),
    ("ImageGeneration", Kind::Object(&IMAGE_GENERATION)),
    ("LocalShell", Kind::Object(&object(&[tag(&["local_shell"])]))),
    ("FunctionShellTool", Kind::Object(&SHELL)),
    ("CustomTool", Kind::Object(&CUSTOM)),
    ("NamespaceTool", Kind::Object(&NAMESPACE)),
    ("ToolSearchTool", Kind::Object(&TOOL_SEARCH)),
    ("WebSearchPreviewTool", Kind::Object(&WEB_SEARCH_PREVIEW)),
    ("ApplyPatchTool", Kind::Object(&object(&[tag(&["apply_patch"]), CALLERS]))),
]));

/// `tool_choice`
pub(super) const TOOL_CHOICE: Kind = Kind::AnyOf(&[
    Kind::OneOf(&["none", "auto", "required"]),
    Kind::AnyNamed(&[
        (
            "ToolChoiceAllowed",
            Kind::Object(&object(&[
                Field("mode", Kind::OneOf(&["auto", "required"]), Required),
                Field("tools", Kind::List(&Kind::Dictionary), Required),
                tag(&["allowed_tools"]),
            ])),
        ),
        (
            "ToolChoiceTypes",
            Kind::Object(&object(&[tag(&[
                "file_search",
                "web_search_preview",
                "computer",
                "computer_use_preview",
                "computer_use",
                "web_search_preview_2025_03_11",
                "image_generation",
                "code_interpreter",
            ])])),
        ),
        ("ToolChoiceFunction", Kind::Object(&object(&[NAME, tag(&["function"])]))),
        (
            "ToolChoiceMcp",
            Kind::Object(&object(&[
                Field("server_label", Kind::Text, Required),
                tag(&["mcp"]),
                optional("name", Kind::Text),
            ])),
        ),
        ("ToolChoiceCustom", Kind::Object(&object(&[NAME, tag(&["custom"])]))),
        (
            "ToolChoiceSpecificProgrammaticToolCallingParam",
            Kind::Object(&object(&[tag(&["programmatic_tool_calling"])])),
        ),
        ("ToolChoiceApplyPatch", Kind::Object(&object(&[tag(&["apply_patch"])]))),
        ("ToolChoiceShell", Kind::Object(&object(&[tag(&["shell"])]))),
    ]),
]);

/// `text.format`
pub(super) const FORMAT: Kind = Kind::AnyNamed(&[
    ("ResponseFormatText", Kind::Object(&object(&[tag(&["text"])]))),
    (
        "ResponseFormatTextJSONSchemaConfig",
        Kind::Object(&object(&[
            NAME,
            Field("schema", Kind::Dictionary, Required),
            tag(&["json_schema"]),
            DESCRIPTION,
            STRICT,
        ])),
    ),
    ("ResponseFormatJSONObject", Kind::Object(&object(&[tag(&["json_object"])]))),
]);
