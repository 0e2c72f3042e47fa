package v1alpha1

// Entrypoint is what an image runs by itself. It was looked up in the image's registry for a gated container without command.
type Entrypoint struct {
	// The template it was looked up for, by the hash in the names of its pods. They all get this entrypoint, also when the
	// image's tag moves on.
	TemplateHash string `json:"templateHash"`

	// The image as the template names it.
	Image string `json:"image"`

	// The digest that the registry gave for it.
	// +optional
	Digest string `json:"digest,omitempty"`

	// The image's ENTRYPOINT. Empty where args of the template, or else the image's CMD, are the command.
	// +listType=atomic
	// +optional
	Command []string `json:"command,omitempty"`

	// The image's CMD, which args of the template replace.
	// +listType=atomic
	// +optional
	Args []string `json:"args,omitempty"`

	// The image's STOPSIGNAL, if it is one of those that lifecycle.stopSignal of the gated container may be. The process is asked to
	// end by it unless that field names another one.
	// +optional
	StopSignal string `json:"stopSignal,omitempty"`
}
